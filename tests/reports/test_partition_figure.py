import numpy as np
import pytest

from rayfed_ssl.data.partitions import PARTITIONS, count_samples, partition
from rayfed_ssl.reports.partition_figure import LARGEST, partition_figure

LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, -1])
SHARDS = {1: np.array([0, 1, 2, 3, 4]), 4: np.array([5, 6, 9])}
CLASSES = ("ant", "bee", "cow")


def circles(figure):
    """Read the picture back: area by (class, row), in squares of diameters."""
    return {
        (int(x), int(y)): float(width) ** 2
        for collection in figure.axes[0].collections
        for (x, y), width in zip(collection.get_offsets(), collection.get_widths(), strict=True)
    }


def test_samples_are_counted_by_client_and_class():
    assert count_samples(LABELS, SHARDS.values(), 3).tolist() == [[4, 1, 0], [0, 1, 1]]


def test_the_area_of_a_circle_is_proportional_to_its_count_and_none_is_drawn_for_none():
    areas = circles(partition_figure(LABELS, SHARDS, CLASSES))
    assert set(areas) == {(0, 0), (1, 0), (1, 1), (2, 1)}
    assert areas[0, 0] == pytest.approx(4 * areas[1, 0], rel=1e-9)
    assert areas[1, 0] == areas[1, 1] == areas[2, 1]
    assert max(areas.values()) ** 0.5 == pytest.approx(LARGEST, rel=1e-9)


@pytest.mark.parametrize(("num_clients", "num_classes"), [(3, 2), (100, 20), (5, 200)])
def test_cells_are_squares_and_nothing_is_cut_off(num_clients, num_classes):
    labels = np.arange(num_clients * num_classes) % num_classes
    shards = dict(enumerate(np.split(np.arange(len(labels)), num_clients)))
    figure = partition_figure(labels, shards, [str(i) for i in range(num_classes)], title="a partition\nits skew")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    box = axes.get_window_extent()
    assert box.width / num_classes == pytest.approx(box.height / num_clients, rel=1e-6)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        inner = text.get_window_extent()
        assert figure.bbox.x0 <= inner.x0 < inner.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= inner.y0 < inner.y1 <= figure.bbox.y1


def test_rows_name_clients_and_their_sizes_with_the_public_set_first():
    figure = partition_figure(LABELS, dict(reversed(SHARDS.items())), CLASSES, public=np.array([7, 8]), title="toy")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["public (2)", "1 (5)", "4 (3)"]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(CLASSES)
    assert axes.get_title() == "toy"
    hollow, filled = axes.collections
    assert hollow.get_offsets().tolist() == [[2.0, 0.0]]
    assert len(hollow.get_facecolor()) == 0
    assert len(filled.get_offsets()) == 4


FIELDS = {
    "dirichlet": {"alpha": 1.0},
    "dirichlet_balanced": {"alpha": 1.0},
    "dirichlet_min_samples": {"alpha": 1.0},
    "quantity_skew": {"alpha": 1.0},
    "classes_per_client": {"classes": 2},
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition_has_its_picture(name, tmp_path):
    labels, number = np.arange(600) % 5, 1 if name == "pooled" else 4
    fields = FIELDS.get(name, {})
    if name == "file":
        (tmp_path / "split.json").write_text("[[0, 1, 2], [3], [4, 9], [14, 19, 24, 28]]")
        fields = {"path": tmp_path / "split.json"}
    if name == "column":
        fields = {"column": "site", "groups": np.arange(600) % 7}
    shards = dict(enumerate(partition(name, labels, number, 0, **fields)))
    counts = count_samples(labels, shards.values(), 5)
    areas = circles(partition_figure(labels, shards, list("abcde"), title=name))
    clients, classes = np.nonzero(counts)
    assert set(areas) == set(zip(classes.tolist(), clients.tolist(), strict=True))
    for (label, client), area in areas.items():
        assert area / max(areas.values()) == pytest.approx(counts[client, label] / counts.max(), rel=1e-9)


def test_a_client_without_labels_is_drawn_empty():
    areas = circles(partition_figure(np.array([0, -1]), {0: np.array([0]), 1: np.array([1])}, ("ant",)))
    assert set(areas) == {(0, 0)}
    assert circles(partition_figure(np.array([-1]), {0: np.array([0])}, ("ant",))) == {}
