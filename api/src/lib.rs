//! The API: custom resources, and all names that more than one program uses.

pub mod kind;
pub mod merge;
pub mod migration;
pub mod names;
pub mod node_migration;
pub mod record;
pub mod traffic;

pub use kind::{Kind, KindSpec};
pub use migration::{Migration, MigrationSpec, MigrationStatus};
pub use node_migration::{NodeMigration, NodeMigrationSpec, NodeMigrationStatus};
pub use record::{MigrationRecord, MigrationRecordSpec};
