//! Calico's objects as the migration writes them: pool, Felix configuration, blocks, handles, annotations.
