//! Prints the custom resource definitions for `deploy/crds/replumb.dev.yaml`.

use kube::CustomResourceExt;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definitions = [
        api::Migration::crd(),
        api::NodeMigration::crd(),
        api::MigrationRecord::crd(),
        api::ConnectionSample::crd(),
    ];
    let mut out = std::io::stdout().lock();
    for definition in &definitions {
        std::io::Write::write_all(
            &mut out,
            format!("---\n{}", yaml_serde::to_string(definition)?).as_bytes(),
        )?;
    }
    Ok(())
}
