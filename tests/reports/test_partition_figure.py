import numpy as np
import pytest

from rayfed_ssl.reports.figures import LARGEST, partition_figure

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


def test_the_area_of_a_circle_is_proportional_to_its_count_and_none_is_drawn_for_none():
    areas = circles(partition_figure(LABELS, SHARDS, CLASSES))
    assert set(areas) == {(0, 0), (1, 0), (1, 1), (2, 1), (3, 1)}
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
    assert [label.get_text() for label in axes.get_xticklabels()] == [*CLASSES, "no label"]
    assert axes.get_title() == "toy"
    hollow, filled = axes.collections
    assert hollow.get_offsets().tolist() == [[2.0, 0.0]]
    assert len(hollow.get_facecolor()) == 0
    assert len(filled.get_offsets()) == 5


@pytest.mark.parametrize("classes", [("ant",), ()])
def test_samples_without_a_label_have_a_column_of_their_own(classes):
    figure = partition_figure(np.array([-1, -1]), {0: np.array([0]), 1: np.array([1])}, classes)
    assert set(circles(figure)) == {(len(classes), 0), (len(classes), 1)}
    assert figure.axes[0].get_xticklabels()[-1].get_text() == "no label"


def test_many_clients_are_drawn_by_their_sizes_and_by_their_largest_class():
    labels = np.concatenate([np.full(3 + client % 5, client % 4) for client in range(200)])
    ends = np.cumsum([3 + client % 5 for client in range(200)])
    shards = dict(enumerate(np.split(np.arange(len(labels)), ends[:-1])))
    figure = partition_figure(labels, shards, tuple("abcd"), title="toy", names={i: f"writer {i}" for i in range(200)})
    sizes, shares = figure.axes[:2]
    values = np.asarray(shares.images[0].get_array())
    assert values.shape == (4, 200)
    assert np.array_equal(values.argmax(0), np.sort(values.argmax(0)))
    assert np.array_equal(values, np.eye(4)[values.argmax(0)].T)
    heights = sizes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == 7
    assert sizes.get_xlabel().startswith("200 clients by number of samples: 0 writer 0 has 3, ")


def test_names_stand_beside_ids():
    figure = partition_figure(LABELS, SHARDS, CLASSES, names={1: "oslo", 4: "lima"})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["1 oslo (5)", "4 lima (3)"]
