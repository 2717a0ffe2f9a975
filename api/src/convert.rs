//! The door from wire to domain.
