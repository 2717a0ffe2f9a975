//! The definitions in `deploy/crds` are those of the types: a stale file prunes fields without a word.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn definitions_in_deploy_are_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds/replumb.dev.yaml");
    let written =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));

    let output = Command::new(env!("CARGO_BIN_EXE_crds"))
        .output()
        .expect("crds starts");
    assert!(
        output.status.success(),
        "crds failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let generated = String::from_utf8(output.stdout).expect("crds prints UTF-8");

    let first = written
        .lines()
        .zip(generated.lines())
        .enumerate()
        .find(|(_, (old, new))| old != new)
        .map_or_else(
            || {
                format!(
                    "{} lines there, {} generated",
                    written.lines().count(),
                    generated.lines().count()
                )
            },
            |(index, (old, new))| format!("line {}: {old:?} there, {new:?} generated", index + 1),
        );
    assert!(
        written == generated,
        "{} is stale ({first}); run: cargo run -p api --bin crds > deploy/crds/replumb.dev.yaml",
        path.display()
    );
}
