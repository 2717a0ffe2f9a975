//! Equal words, labels and ports of many pods are in memory once.

use std::collections::HashSet;
use std::sync::Arc;

use engine::labels::Labels;
use engine::ports::ContainerPort;

/// Words, labels and ports in use.
#[derive(Debug, Default)]
pub struct Interned {
    words: HashSet<Arc<str>>,
    labels: HashSet<Labels>,
    ports: HashSet<Arc<[ContainerPort]>>,
    /// Number of labels and of ports at which unused ones are removed.
    enough: usize,
}

/// Number of labels and of ports kept before unused ones are removed.
const FEW: usize = 1024;

impl Interned {
    /// The same labels, shared by all objects that have them.
    pub fn labels(&mut self, labels: &Labels) -> Labels {
        if let Some(known) = self.labels.get(labels) {
            return known.clone();
        }
        if self.labels.len() >= self.enough {
            self.forget_unused();
        }
        let shared: Labels = labels
            .iter()
            .map(|(key, value)| (self.word(key), self.word(value)))
            .collect();
        self.labels.insert(shared.clone());
        shared
    }

    /// The same ports, shared by all pods that declare them.
    pub fn ports(&mut self, ports: &Arc<[ContainerPort]>) -> Arc<[ContainerPort]> {
        if let Some(known) = self.ports.get(ports) {
            return Arc::clone(known);
        }
        if self.ports.len() >= self.enough {
            self.forget_unused();
        }
        let shared: Arc<[ContainerPort]> = ports
            .iter()
            .map(|port| ContainerPort {
                name: port.name.as_ref().map(|name| self.word(name)),
                ..port.clone()
            })
            .collect();
        self.ports.insert(Arc::clone(&shared));
        shared
    }

    /// Removes words, labels and ports that no object has any more.
    pub fn forget_unused(&mut self) {
        self.labels.retain(Labels::is_shared);
        self.ports.retain(|ports| Arc::strong_count(ports) > 1);
        self.words.retain(|word| Arc::strong_count(word) > 1);
        self.enough = (self.labels.len().max(self.ports.len()) * 2).max(FEW);
    }

    fn word(&mut self, word: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.words.get(word) {
            return Arc::clone(known);
        }
        self.words.insert(Arc::clone(word));
        Arc::clone(word)
    }
}

#[cfg(test)]
mod tests {
    use engine::ports::Protocol;

    use super::*;

    #[test]
    fn equal_labels_are_stored_once() {
        let mut interned = Interned::default();
        let of = |number: usize| {
            Labels::from([
                ("app".to_owned(), "web".to_owned()),
                ("n".to_owned(), number.to_string()),
            ])
        };
        let kept: Vec<Labels> = (0..3).map(|number| interned.labels(&of(number % 2))).collect();
        assert_eq!(kept[0], kept[2]);
        assert_eq!((interned.labels.len(), interned.words.len()), (2, 5));
    }

    #[test]
    fn unused_labels_are_removed() {
        let mut interned = Interned::default();
        let kept = interned.labels(&Labels::from([("app", "web")]));
        for number in 0..10 * FEW {
            interned.labels(&Labels::from([("n".to_owned(), number.to_string())]));
        }
        assert!(interned.labels.len() <= FEW, "{}", interned.labels.len());
        interned.forget_unused();
        assert_eq!((interned.labels.len(), interned.words.len()), (1, 2));
        drop(kept);
    }

    #[test]
    fn equal_ports_are_stored_once_and_unused_ones_are_removed() {
        let mut interned = Interned::default();
        let of = |number: usize| -> Arc<[ContainerPort]> {
            let port = ContainerPort {
                name: Some("http".into()),
                protocol: Protocol::Tcp,
                number: u16::try_from(number % 65_536).unwrap(),
                is_init: false,
            };
            [port].into()
        };
        let kept: Vec<_> = (0..3).map(|number| interned.ports(&of(number % 2))).collect();
        assert!(Arc::ptr_eq(&kept[0], &kept[2]) && !Arc::ptr_eq(&kept[0], &kept[1]));
        assert_eq!((interned.ports.len(), interned.words.len()), (2, 1));
        for number in 0..10 * FEW {
            interned.ports(&of(number));
        }
        assert!(interned.ports.len() <= FEW, "{}", interned.ports.len());
        interned.forget_unused();
        assert_eq!((interned.ports.len(), interned.words.len()), (2, 1));
        drop(kept);
    }
}
