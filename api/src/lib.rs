//! The API: custom resources, and all names that more than one program uses.

pub mod connection_sample;
mod event_reason;
mod failure_category;
pub mod kind;
pub mod kind_spec;
pub mod merge;
pub mod migration;
pub mod names;
pub mod node_migration;
mod reason;
pub mod record;
pub mod rollout;
pub mod traffic;

pub use connection_sample::{ConnectionSample, ConnectionSampleSpec, ConnectionSampleStatus};
pub use event_reason::{Announcement, EventReason};
pub use failure_category::FailureCategory;
pub use kind::Kind;
pub use kind_spec::KindSpec;
pub use migration::{Migration, MigrationSpec, MigrationStatus};
pub use node_migration::{NodeMigration, NodeMigrationSpec, NodeMigrationStatus};
pub use record::{MigrationRecord, MigrationRecordSpec};
