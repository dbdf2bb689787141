//! Many searches side by side, each with a thread of its own: two threads in one search cost a third
//! more than one in each of two, because what one thread has in its cache the other must fetch.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

/// Does `one` for everything in the list, `lanes` at a time and those first that `size` calls large,
/// and tells `then` what came of it, in the order of the list, until it has heard enough: then
/// nothing new is begun.
pub fn side_by_side<'a, T: Sync, R: Send>(
    list: &'a [T],
    lanes: usize,
    size: impl Fn(&T) -> u64,
    one: impl Fn(&T) -> R + Sync,
    mut then: impl FnMut(&'a T, R) -> ControlFlow<()>,
) {
    let mut order: Vec<usize> = (0..list.len()).collect();
    if lanes > 1 {
        order.sort_by_key(|at| Reverse(size(&list[*at])));
    }
    let next = AtomicUsize::new(0);
    let (order, next, one) = (&order, &next, &one);
    let (report, done) = channel();
    std::thread::scope(|scope| {
        for _ in 0..lanes.max(1) {
            let report = report.clone();
            scope.spawn(move || {
                while let Some(at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if report.send((*at, one(&list[*at]))).is_err() {
                        return; // enough was heard, or `then` has panicked
                    }
                }
            });
        }
        drop(report);
        let mut came: Vec<Option<R>> = list.iter().map(|_| None).collect();
        let mut told = 0;
        for (at, result) in done {
            came[at] = Some(result);
            while let Some(result) = came.get_mut(told).and_then(Option::take) {
                if then(&list[told], result).is_break() {
                    return;
                }
                told += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_done_and_told_in_order_until_enough_was_heard() {
        let list: Vec<u64> = (0..100).collect();
        for (lanes, until) in [(0, 100), (1, 3), (3, 100), (3, 40)] {
            let begun = AtomicUsize::new(0);
            let mut told = Vec::new();
            let one = |n: &u64| {
                begun.fetch_add(1, Ordering::Relaxed);
                n * n
            };
            let then = |n: &u64, square: u64| {
                assert_eq!(square, n * n);
                told.push(*n);
                if told.len() == until {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            side_by_side(&list, lanes, |n| n % 7, one, then);
            assert_eq!(told, list[..until], "{lanes} lanes");
            assert!(begun.into_inner() >= until);
        }
    }
}
