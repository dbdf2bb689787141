//! Decisions of a walk. Each step has its own seed, so that a step can be left out in shrinking
//! without changing what the others decide.

pub struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`.
    pub fn roll(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.roll(from.len() as u64) as usize;
        from.get(at).cloned()
    }

    /// A small number, mostly; otherwise one that hurts.
    pub fn number(&mut self, small: u64, max: u64) -> u64 {
        match self.roll(8) {
            0 => max,
            1 => max - 1,
            _ => self.roll(small + 1),
        }
    }
}
