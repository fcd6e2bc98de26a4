//! How kernel variants are chosen on a device.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use signbit_engine::device::GpuOptions;
use signbit_engine::tuning::{Choose, Chosen, Tuning, Variant};

const MODEL: &str = "qwen35-q1_0";

fn chosen(options: GpuOptions, choose: Choose) -> Tuning {
    let engine = load_with(gpu_with(options), &model_bytes(MODEL), choose);
    engine.tuning().unwrap().clone()
}

fn fastest(remembered: Tuning) -> Choose {
    Choose::Fastest { remembered }
}

fn names(product: &Chosen) -> Vec<&str> {
    product.candidates.iter().map(|c| c.variant.as_str()).collect()
}

#[test]
fn every_right_variant_is_timed_and_the_fastest_runs() {
    let _gpu = one_at_a_time();
    let tuning = chosen(GpuOptions::default(), Choose::default());
    assert!(!tuning.products.is_empty());
    for product in &tuning.products {
        assert!(product.candidates.iter().all(|c| c.is_right), "{product:?}");
        // Without subgroups there are four.
        assert!(names(product).len() >= Variant::ALL.len() - 1, "{product:?}");
        let time = |c: &signbit_engine::tuning::Candidate| c.ns_per_row.filter(|ns| *ns > 0.0);
        if product.candidates.iter().all(|c| time(c).is_some()) {
            let least =
                product.candidates.iter().min_by(|a, b| time(a).unwrap().total_cmp(&time(b).unwrap()));
            assert_eq!(product.variant, least.unwrap().variant, "{product:?}");
        }
    }
}

/// A kernel whose dispatches have no effect, as some drivers have it, may not be chosen.
#[test]
fn a_wrong_variant_is_not_chosen() {
    let _gpu = one_at_a_time();
    let broken =
        || GpuOptions { drop_kernel: Some("norm_matvec_table_q1_0".to_owned()), ..GpuOptions::default() };
    let table = |tuning: &Tuning| {
        let products: Vec<_> =
            tuning.products.iter().filter(|p| p.product.starts_with("norm_matvec q1_0")).cloned().collect();
        assert!(!products.is_empty());
        products
    };
    for product in table(&chosen(broken(), Choose::default())) {
        for candidate in &product.candidates {
            assert_eq!(candidate.is_right, candidate.variant != "table", "{product:?}");
        }
        assert_ne!(product.variant, "table");
    }
    // Not even where it is asked for, nor where it was fastest before.
    let tuning = chosen(broken(), Choose::Fixed(Variant::Table));
    assert!(table(&tuning).iter().all(|p| p.variant == "lanes"), "{tuning:?}");
    assert!(tuning.products.iter().any(|p| p.variant == "table"), "{tuning:?}");
    let mut before = chosen(GpuOptions::default(), Choose::default());
    for product in &mut before.products {
        product.variant = "table".to_owned();
    }
    let tuning = chosen(broken(), fastest(before));
    assert!(table(&tuning).iter().all(|p| p.variant == "lanes"), "{tuning:?}");
}

#[test]
fn choices_are_remembered_for_the_same_device_alone() {
    let _gpu = one_at_a_time();
    let mut before = chosen(GpuOptions::default(), Choose::default());
    for product in &mut before.products {
        product.variant = "table4".to_owned();
    }
    let kept = chosen(GpuOptions::default(), fastest(before.clone()));
    assert_eq!(kept.device, before.device);
    assert_eq!(kept.products.len(), before.products.len());
    for product in &kept.products {
        assert_eq!((product.variant.as_str(), names(product)), ("table4", vec!["table4"]));
    }
    before.device.push_str(" of another version");
    let measured = chosen(GpuOptions::default(), fastest(before));
    assert!(measured.products.iter().all(|p| p.candidates.len() > 1), "{measured:?}");
}
