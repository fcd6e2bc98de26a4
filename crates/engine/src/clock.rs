//! A clock for pacing work; `std::time::Instant` does not exist in a web page.

/// Milliseconds since some fixed moment.
#[cfg(not(target_arch = "wasm32"))]
pub fn now_ms() -> f64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64() * 1e3
}

/// Milliseconds since some fixed moment.
#[cfg(target_arch = "wasm32")]
pub fn now_ms() -> f64 {
    use wasm_bindgen::prelude::wasm_bindgen;
    #[wasm_bindgen]
    extern "C" {
        #[wasm_bindgen(js_namespace = performance, js_name = now)]
        fn performance_now() -> f64;
    }
    performance_now()
}

/// Adapts the size of a slice of work to how long slices take, so that a page stays smooth on a
/// slow device and a fast one is not kept waiting.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    size: u32,
    least: u32,
    most: u32,
}

impl Pace {
    /// Starts at `size` and stays within `least..=most`.
    ///
    /// `least` bounds what is lost where a slice has a fixed cost: Firefox reports the end of any
    /// work on a timer of 100 ms.
    pub fn new(size: u32, least: u32, most: u32) -> Self {
        let least = least.clamp(1, most.max(1));
        Self { size: size.clamp(least, most.max(1)), least, most }
    }

    /// The size of the next slice.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Learns from a full slice that took `elapsed_ms` where `budget_ms` is what it may take.
    pub fn learn(&mut self, elapsed_ms: f64, budget_ms: f64) {
        if elapsed_ms < budget_ms / 2.0 {
            self.size = (self.size * 2).min(self.most);
        } else if elapsed_ms > budget_ms {
            self.size = (self.size / 2).max(self.least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_grows_when_fast_and_shrinks_when_slow() {
        let mut pace = Pace::new(32, 4, 100);
        pace.learn(1.0, 100.0);
        assert_eq!(pace.size(), 64);
        pace.learn(1.0, 100.0);
        assert_eq!(pace.size(), 100);
        pace.learn(75.0, 100.0);
        assert_eq!(pace.size(), 100);
        // The same slice is too long once less is allowed.
        pace.learn(75.0, 16.0);
        assert_eq!(pace.size(), 50);
        for _ in 0..10 {
            pace.learn(1e6, 100.0);
        }
        assert_eq!(pace.size(), 4);
    }
}
