//! Element-wise operations, against plain code.

use outpost_kernels::{Pool, add, add_scaled, concat_channels, resize_nearest};

fn numbers(count: usize, from: f32) -> Vec<f32> {
    (0..count).map(|at| from + at as f32).collect()
}

#[test]
fn sums_reach_every_number() {
    let mut x = numbers(200_001, 0.);
    add(&Pool::new(3), &mut x, &numbers(200_001, 1.));
    assert!(x.iter().enumerate().all(|(at, x)| *x == 2. * at as f32 + 1.));
}

#[test]
fn rows_lie_side_by_side() {
    let (x, y) = (numbers(3 * 2, 0.), numbers(3, 100.));
    let mut out = vec![f32::NAN; 9];
    concat_channels(&Pool::new(2), [&x, &y], [2, 1], &mut out);
    assert_eq!(out, [0., 1., 100., 2., 3., 101., 4., 5., 102.]);
}

#[test]
fn the_nearest_pixel_is_taken() {
    let pool = Pool::new(2);
    for (from, to) in [([2, 3], [4, 6]), ([2, 3], [3, 5]), ([5, 5], [2, 3])] {
        let (images, channels) = (2, 3);
        let x = numbers(images * from[0] * from[1] * channels, 0.);
        let mut out = vec![f32::NAN; images * to[0] * to[1] * channels];
        resize_nearest(&pool, &x, from, to, channels, &mut out);
        for (at, found) in out.iter().enumerate() {
            let (channel, rest) = (at % channels, at / channels);
            let (column, rest) = (rest % to[1], rest / to[1]);
            let (line, image) = (rest % to[0], rest / to[0]);
            let old = (image * from[0] + line * from[0] / to[0]) * from[1] + column * from[1] / to[1];
            assert_eq!(*found, (old * channels + channel) as f32, "{from:?} to {to:?}, number {at}");
        }
    }
}

#[test]
fn rows_are_added_times_factors() {
    let (width, factors) = (7, numbers(7, -3.));
    let (mut x, y) = (numbers(30_000 * width, 0.), numbers(30_000 * width, 1.));
    add_scaled(&Pool::new(3), &mut x, &y, &factors);
    let exact = |at: usize| at as f32 + (1. + at as f32) * factors[at % width];
    assert!(x.iter().enumerate().all(|(at, x)| (x - exact(at)).abs() <= exact(at).abs() * 1e-6));
}
