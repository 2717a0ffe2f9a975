//! The wire: custom resources, and every name that crosses a process boundary.

pub mod merge;
pub mod migration;
pub mod names;
pub mod node_migration;
pub mod record;
pub mod traffic;

pub use migration::{Migration, MigrationSpec, MigrationStatus};
pub use node_migration::{NodeMigration, NodeMigrationSpec, NodeMigrationStatus};
pub use record::{MigrationRecord, MigrationRecordSpec};
