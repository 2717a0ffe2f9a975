//! An API server in memory: objects by path, lists by label and in pages, merge patches (RFC 7386), the JSON patches (RFC 6902)
//! that replumb writes, and evictions. Defaults, schemas, admission and watches are missing.

mod answer;
mod json_patch;
mod list;
mod objects;
mod path;
mod request;

pub use self::json_patch::as_merge;
pub use answer::{Answer, failure, failure_of};
pub use objects::Objects;
pub use path::{Place, is_below, parse, path_of};
pub use request::{Call, client};
