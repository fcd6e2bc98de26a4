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
    // Where time runs short, later products run as those like them. Without subgroups there are four.
    assert!(names(&tuning.products[0]).len() >= Variant::ALL.len() - 1, "{tuning:?}");
    for product in &tuning.products {
        assert!(product.candidates.iter().all(|c| c.is_right), "{product:?}");
        let timed = product.candidates.iter().filter_map(|c| Some((c.ns_per_row?, &c.variant)));
        if let Some((_, fastest)) = timed.min_by(|a, b| a.0.total_cmp(&b.0)) {
            assert_eq!(&product.variant, fastest, "{product:?}");
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
    before.products.iter_mut().for_each(|p| "table".clone_into(&mut p.variant));
    let tuning = chosen(broken(), fastest(before));
    assert!(table(&tuning).iter().all(|p| p.variant != "table"), "{tuning:?}");
}

#[test]
fn measured_choices_are_remembered_for_the_same_device_alone() {
    let _gpu = one_at_a_time();
    let mut before = chosen(GpuOptions::default(), Choose::default());
    // As if another had won, wherever it was measured.
    let is_timed = |p: &Chosen| p.candidates.iter().any(|c| c.variant == "table4" && c.ns_per_row.is_some());
    let timed: Vec<bool> = before.products.iter().map(is_timed).collect();
    assert!(timed.contains(&true), "{before:?}");
    before.products.iter_mut().for_each(|p| "table4".clone_into(&mut p.variant));
    let kept = chosen(GpuOptions::default(), fastest(before.clone()));
    assert_eq!(kept.device, before.device);
    assert_eq!(kept.products.len(), before.products.len());
    for ((kept, before), timed) in kept.products.iter().zip(&before.products).zip(timed) {
        // What was measured then stays known.
        assert!(!timed || kept == before, "{kept:?}");
    }
    before.device.push_str(" of another version");
    let measured = chosen(GpuOptions::default(), fastest(before));
    assert!(measured.products[0].candidates.len() > 1, "{measured:?}");
}
