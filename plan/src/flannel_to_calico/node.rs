//! The next step of one node.
