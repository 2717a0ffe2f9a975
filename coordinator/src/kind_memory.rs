//! What each kind keeps between passes, in a type that only the kind knows.

use std::any::{Any, TypeId};
use std::collections::HashMap;

/// State that a kind keeps between passes. It is lost when the coordinator restarts.
pub(crate) trait KindMemory: Any + Send {
    /// Ends work that continues between passes: another coordinator may lead from now on.
    fn stop(&mut self) {}
}

/// The state of every kind that has kept any.
#[derive(Default)]
pub(crate) struct KindMemories(HashMap<TypeId, Box<dyn KindMemory>>);

impl KindMemories {
    /// The state of this type. Empty on the first call.
    pub fn of<M: KindMemory + Default>(&mut self) -> &mut M {
        let memory = self
            .0
            .entry(TypeId::of::<M>())
            .or_insert_with(|| Box::new(M::default()));
        let memory: &mut dyn Any = memory.as_mut();
        match memory.downcast_mut() {
            Some(memory) => memory,
            None => unreachable!("the key is the type of the value"),
        }
    }

    /// Ends the work of every kind.
    pub fn stop(&mut self) {
        for memory in self.0.values_mut() {
            memory.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Debug, PartialEq)]
    struct First(u32);

    #[derive(Default, Debug, PartialEq)]
    struct Second {
        is_stopped: bool,
    }

    impl KindMemory for First {}

    impl KindMemory for Second {
        fn stop(&mut self) {
            self.is_stopped = true;
        }
    }

    #[test]
    fn each_type_has_its_own_state() {
        let mut memories = KindMemories::default();
        memories.of::<First>().0 = 7;
        assert_eq!(memories.of::<Second>(), &Second::default());
        assert_eq!(memories.of::<First>(), &First(7));
    }

    #[test]
    fn work_of_every_kind_ends() {
        let mut memories = KindMemories::default();
        memories.of::<First>().0 = 7;
        memories.of::<Second>();
        memories.stop();
        assert!(memories.of::<Second>().is_stopped);
        assert_eq!(memories.of::<First>(), &First(7));
    }
}
