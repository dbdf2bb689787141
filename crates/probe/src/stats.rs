//! Whether times differ, and how likely it is that they do so by chance.

/// The chance that so many of `a` are larger than those of `b`, or more, if both come from the same
/// distribution, whatever it is: the exact one-sided test of Mann, Whitney and Wilcoxon. Ties count
/// as not larger.
pub fn larger_by_chance(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let larger = a.iter().map(|a| b.iter().filter(|b| a > *b).count());
    let larger: usize = larger.sum();
    // Of all orders of n + m values, how many have so many pairs in the right order?
    let (n, m) = (a.len(), b.len());
    let most = n * m;
    // ways[j][u]: arrangements of i of one kind and j of the other with u pairs.
    let mut ways = vec![vec![0.0_f64; most + 1]; m + 1];
    ways.iter_mut().for_each(|row| row[0] = 1.0);
    for _ in 1..=n {
        let mut next = vec![vec![0.0_f64; most + 1]; m + 1];
        next[0][0] = 1.0;
        for j in 1..=m {
            for u in 0..=most {
                let last_is_a = if u >= j { ways[j][u - j] } else { 0.0 };
                next[j][u] = last_is_a + next[j - 1][u];
            }
        }
        ways = next;
    }
    let all: f64 = ways[m].iter().sum();
    let as_many: f64 = ways[m][larger..].iter().sum();
    as_many / all
}

/// The value in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_is_exact() {
        let low: Vec<f64> = (0..10).map(f64::from).collect();
        let high: Vec<f64> = (20..30).map(f64::from).collect();
        // One arrangement of 20 over 10.
        assert!((larger_by_chance(&high, &low) * 184_756.0 - 1.0).abs() < 1e-9);
        assert_eq!(larger_by_chance(&low, &high), 1.0);
        // Three against three, all but one pair: two arrangements of twenty have as many.
        let p = larger_by_chance(&[2.0, 4.0, 5.0], &[0.0, 1.0, 3.0]);
        assert!((p - 0.1).abs() < 1e-9, "{p}");
        let even = larger_by_chance(&[1.0, 4.0], &[2.0, 3.0]);
        assert!((0.3..0.8).contains(&even), "{even}");
        assert_eq!(larger_by_chance(&[], &low), 1.0);
    }

    #[test]
    fn the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
