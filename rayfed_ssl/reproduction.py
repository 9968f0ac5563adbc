"""Reproductions: the papers' tables and figures as data, each a YAML file that says what to run and what was published.

A file of `rayfed_ssl/reproductions/` has these keys:

    title      what the table or figure shows
    source     {paper, item, arxiv}, for example {paper: FLESD, item: Table 1, arxiv: "2109.14611"}
    kind       table or figure; a figure also says `draw`: bars, lines, losses, rounds, boxplots, heatmaps or tsne
    unit       percent (scores in [0, 1] times 100) or the unit of a score that is printed as it is
    score      what a cell shows: "linear", "linear_best", "knn", the name of a protocol, or a diagnostic ("diag_...")
    take       of which encoder: global, mean, minimum (over clients) or client-3; the default is global where there is
               one and else the mean
    notes      what a reader has to know, a line each
    rows       name -> {recipe, set, score, take, start}; `start: random` trains nothing before the step of `after`
    columns    name -> {set, score, take, after, x, panel, obtain}; `after` is a second run that begins with the encoder of
               the first: {recipe, set}, with data, partition, clients, model and seed of the first; `x` and `panel`
               place a column in a figure; `obtain` says how to get its dataset
    published  row -> one number for each column, ~ where the paper has none; rows without numbers are left out
    sizes      paper and cpu, each {set, rows, columns, notes}: what holds for all cells, for a row, for a column at this
               size; `columns` as a list takes columns as they are and leaves the others out

`set` maps dotted keys of the configuration to values. A cell is its row's recipe changed by the size's `set`, the
column's, the row's, the size's for the column, the size's for the row, and last by the user. Cells of equal settings are
one run.

`reproduction.json`, which `rayfed-ssl reproduce` writes into its directory beside `table.md`, has these keys:

    format     1
    name, title, kind, unit, source, notes     as above; notes hold those of the size as well
    size       "paper" or "cpu"
    command    the command line that made it
    settings   the user's changes, "key=value" each
    seeds      list of integers
    rows, columns    names in the paper's order, those that were asked for
    skipped    column -> why it was not run
    cells      list of {row, column, score, take, published, runs, ours, mean, std, difference, failures}: `published` is a
               number or null; `runs` has a directory for each seed, relative to this file; `ours` a number or null for
               each seed, in `unit`, like `mean`, `std` (over seeds, n - 1; null below two) and `difference` (mean minus
               published); `failures` maps a seed, as a string, to one line. Cells of skipped columns are not in it.
    agreement  {cells, kendall}: Kendall's tau-b between our means and the published numbers over the cells that have
               both, and `columns`: column -> tau-b within it; null where it is undefined
    figures    file names of the drawn figure, PNG and SVG, relative to this file
"""
