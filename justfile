# Short names for the commands of README.md and CONTRIBUTING.md. The lab needs root.

# List the recipes.
default:
    @just --list

# Build every program of the workspace.
build:
    cargo build --workspace

# Build kubectl-replumb for release.
cli:
    cargo build --release -p cli

# Run the tests that need neither root nor a cluster.
unit:
    cargo test --workspace

# Check formatting and lints, as the parts format and clippy of the tests do.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    cargo doc --no-deps

# Open the documentation of the crates.
doc:
    cargo doc --no-deps --open

# Run every usual part of the tests, or some: just test --only kernel,api
test *arguments:
    cargo lab test {{arguments}}

# Migrate a lab while traffic flows: just demo --strategy in-place
demo *arguments:
    cargo lab demo {{arguments}}

# Measure a migration of a large cluster: just scale --nodes 500
scale *arguments:
    cargo lab scale {{arguments}}

# Run another command of the lab: just lab status
lab *arguments:
    cargo lab {{arguments}}

# Write the custom resource definitions again.
crds:
    cargo run -p api --bin crds > deploy/crds/replumb.dev.yaml

# Write the index of the runbook again.
runbook-index:
    UPDATE_RUNBOOK_INDEX=1 cargo test -p api --test runbook
