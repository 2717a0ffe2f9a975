//! Tests Calico's datastore with a real etcd that has both APIs and no cluster: cases of a corpus, and a conversion
//! that is killed, watched, and run twice at once.

pub mod case;
pub mod compare;
pub mod corpus;
pub mod etcd;
pub mod intended;
pub mod proxy;
pub mod sample;
pub mod tool;
pub mod trial;
pub mod wire;
mod written;
