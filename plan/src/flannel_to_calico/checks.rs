//! Every prerequisite as a check on cluster facts and host facts.
