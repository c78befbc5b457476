//! Element-wise operations, compared with simple loops.

use outpost_kernels::{Pool, RowShare, add, add_scaled, add_shares, concat_channels, resize_nearest};

fn sequence(count: usize, start: f32) -> Vec<f32> {
    (0..count).map(|i| start + i as f32).collect()
}

#[test]
fn add_reaches_every_element() {
    let mut x = sequence(200_001, 0.);
    add(&Pool::new(3), &mut x, &sequence(200_001, 1.));
    assert!(x.iter().enumerate().all(|(at, x)| *x == 2. * at as f32 + 1.));
}

#[test]
fn rows_are_concatenated() {
    let (x, y) = (sequence(3 * 2, 0.), sequence(3, 100.));
    let mut out = vec![f32::NAN; 9];
    concat_channels(&Pool::new(2), [&x, &y], [2, 1], &mut out);
    assert_eq!(out, [0., 1., 100., 2., 3., 101., 4., 5., 102.]);
}

#[test]
fn images_are_resized_with_the_nearest_pixels() {
    let pool = Pool::new(2);
    for (old_size, new_size) in [([2, 3], [4, 6]), ([2, 3], [3, 5]), ([5, 5], [2, 3])] {
        let (images, channels) = (2, 3);
        let x = sequence(images * old_size[0] * old_size[1] * channels, 0.);
        let mut out = vec![f32::NAN; images * new_size[0] * new_size[1] * channels];
        resize_nearest(&pool, &x, old_size, new_size, channels, &mut out);
        for (at, found) in out.iter().enumerate() {
            let (channel, rest) = (at % channels, at / channels);
            let (column, rest) = (rest % new_size[1], rest / new_size[1]);
            let (line, image) = (rest % new_size[0], rest / new_size[0]);
            let old = (image * old_size[0] + line * old_size[0] / new_size[0]) * old_size[1]
                + column * old_size[1] / new_size[1];
            assert_eq!(*found, (old * channels + channel) as f32, "{old_size:?} to {new_size:?}, element {at}");
        }
    }
}

#[test]
fn shares_of_rows_are_added_in_order() {
    let width = 900;
    let (mut x, y) = (sequence(60 * width, 0.), sequence(100 * width, 1.));
    // Row i gets i % 4 rows.
    let share = |row: usize, index: usize| RowShare { row: (7 * row + 31 * index) % 100, factor: index as f32 - 0.5 };
    let shares: Vec<RowShare> = (0..60).flat_map(|row| (0..row % 4).map(move |index| share(row, index))).collect();
    let ends: Vec<usize> = (0..60)
        .scan(0, |end, row| {
            *end += row % 4;
            Some(*end)
        })
        .collect();
    let mut expected = x.clone();
    for (row, expected) in expected.chunks_mut(width).enumerate() {
        for RowShare { row, factor } in (0..row % 4).map(|index| share(row, index)) {
            expected.iter_mut().zip(&y[row * width..]).for_each(|(x, y)| *x += y * factor);
        }
    }
    add_shares(&Pool::new(3), &mut x, &y, width, &shares, &ends);
    assert_eq!(x, expected);
}

#[test]
fn scaled_rows_are_added() {
    let (width, factors) = (7, sequence(7, -3.));
    let (mut x, y) = (sequence(30_000 * width, 0.), sequence(30_000 * width, 1.));
    add_scaled(&Pool::new(3), &mut x, &y, &factors);
    let exact = |at: usize| at as f32 + (1. + at as f32) * factors[at % width];
    assert!(x.iter().enumerate().all(|(at, x)| (x - exact(at)).abs() <= exact(at).abs() * 1e-6));
}
