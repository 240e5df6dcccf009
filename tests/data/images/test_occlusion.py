import torch

from sightline.data.images.occlusion import cell_mask, fill_cells, occlusion_color

C, H, W, ROWS, COLUMNS = 3, 13, 11, 5, 2


def test_cells_are_filled_with_the_background_or_a_color():
    pixels = torch.randint(1, 255, (C, H, W), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    chosen = (frozenset[int](), frozenset({3}), frozenset({0, 7}), frozenset(range(ROWS * COLUMNS)))
    masks = torch.stack([cell_mask((ROWS, COLUMNS), cells) for cells in chosen])
    white = torch.full((C, 1, 1), 255, dtype=torch.uint8)
    for color in (None, white):
        expected_color = occlusion_color(pixels) if color is None else color
        for image, cells in zip(fill_cells(pixels, masks, color), chosen, strict=True):
            for y in range(H):
                for x in range(W):
                    is_filled = y * ROWS // H * COLUMNS + x * COLUMNS // W in cells
                    expected = expected_color[:, 0, 0] if is_filled else pixels[:, y, x]
                    assert image[:, y, x].equal(expected)
