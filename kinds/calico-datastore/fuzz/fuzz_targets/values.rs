//! A value of Calico v2 that is neither written nor told of, or that ends the conversion.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/values/mod.rs"]
mod values;

fuzz_target!(|input: (u8, &str)| values::check(usize::from(input.0), input.1));
