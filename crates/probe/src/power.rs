//! What a clean run would have caught.

/// The probability that a run of `n` independent trials sees something that happens in a share
/// `rate` of them, if each occurrence is seen with probability `seen`.
pub fn probability(n: u64, rate: f64, seen: f64) -> f64 {
    1.0 - (1.0 - rate * seen).powf(n as f64)
}

/// The largest share of trials in which something could happen and a run of `n` still misses it
/// with probability of at least 5 %: what cannot be excluded.
pub fn not_excluded(n: u64, seen: f64) -> f64 {
    match n {
        0 => 1.0,
        n => ((1.0 - 0.05_f64.powf(1.0 / n as f64)) / seen.max(1e-9)).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_of_three() {
        assert!((not_excluded(300, 1.0) - 0.01).abs() < 0.001);
        assert_eq!(not_excluded(0, 1.0), 1.0);
        assert!(not_excluded(300, 0.5) > 0.019);
    }

    #[test]
    fn both_agree() {
        let rate = not_excluded(300, 0.7);
        assert!((probability(300, rate, 0.7) - 0.95).abs() < 1e-6);
        assert_eq!(probability(0, 0.5, 1.0), 0.0);
    }
}
