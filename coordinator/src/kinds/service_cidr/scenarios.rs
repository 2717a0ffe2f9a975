//! Scenarios: the loop of the coordinator against the API in memory.

mod crowd;
mod foreign_object;
mod mention;
mod silent;
mod watched;
