//! Versions in image tags.

use std::fmt;

/// The version of a release: the first three numbers of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    pub(crate) const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// The version in the tag of an image: `v0.28.4`, `0.11.0-amd64`, `v3.31`. `None` if the tag contains no version.
    pub(crate) fn of_image(image: &str) -> Option<Self> {
        let image = image.split('@').next()?;
        let (_, tag) = image.rsplit('/').next()?.split_once(':')?;
        let tag = tag.strip_prefix('v').unwrap_or(tag);
        let numbers = tag.split(['-', '+', '_']).next()?;
        let mut parts = numbers.split('.').map(str::parse::<u32>);
        let version = Self {
            major: parts.next()?.ok()?,
            minor: parts.next()?.ok()?,
            patch: parts.next().map_or(Ok(0), |part| part).ok()?,
        };
        parts.next().is_none().then_some(version)
    }
}

impl Version {
    /// Major and minor version; `None` if they are too large to be those of a release.
    pub(crate) fn release(self) -> Option<(u16, u16)> {
        Some((u16::try_from(self.major).ok()?, u16::try_from(self.minor).ok()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("ghcr.io/flannel-io/flannel:v0.28.4", Some(Version::new(0, 28, 4)))]
    #[case("quay.io/coreos/flannel:v0.9.1-amd64", Some(Version::new(0, 9, 1)))]
    #[case("localhost:5000/node:3.31", Some(Version::new(3, 31, 0)))]
    #[case("calico/node:v3.34.0-0.dev-67-g87c15906", Some(Version::new(3, 34, 0)))]
    #[case("calico/node:v3.31.7@sha256:0011", Some(Version::new(3, 31, 7)))]
    #[case("localhost:5000/node", None)]
    #[case("calico/node@sha256:0011", None)]
    #[case("calico/node:latest", None)]
    #[case("calico/node:v3", None)]
    #[case("calico/node:20261121", None)]
    #[case("calico/node:1.2.3.4", None)]
    #[case("", None)]
    fn an_image_tag_gives_its_version(#[case] image: &str, #[case] expected: Option<Version>) {
        assert_eq!(Version::of_image(image), expected);
    }

    #[test]
    fn versions_are_ordered_by_number() {
        assert!(Version::new(0, 9, 1) < Version::new(0, 10, 0));
        assert!(Version::new(3, 11, 9) < Version::new(3, 12, 0));
        assert_eq!(Version::new(3, 12, 0).to_string(), "v3.12.0");
    }
}
