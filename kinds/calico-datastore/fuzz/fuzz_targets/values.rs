//! Searches for a value of Calico v2 that is neither written nor reported, or that makes the conversion panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/values/mod.rs"]
mod values;

fuzz_target!(|input: (u8, &str)| values::check(usize::from(input.0), input.1));
