use super::*;

#[test]
fn large_services_take_turns_and_small_ones_are_always_read() {
    let names: Vec<String> = (0..1000).map(|number| format!("tenant/large-{number}")).collect();
    let sizes = || {
        let large = names.iter().map(|name| (name.as_str(), 200 << 10));
        large.chain([("shop/web", 2000), ("shop/media", 100 << 10)])
    };
    let (web, media) = (1000, 1001);
    let (mut read, mut media_read) = (BTreeSet::new(), 0);
    for moment in 0..400 {
        let waiting = out_of_turn(sizes(), moment);
        let now: Vec<usize> = (0..1002).filter(|index| !waiting.contains(index)).collect();
        let bytes: usize = now.iter().map(|index| sizes().nth(*index).unwrap().1).sum();
        assert!(bytes <= MOST_READ + 2000 && now.contains(&web), "{bytes}");
        media_read += usize::from(now.contains(&media));
        read.extend(now);
    }
    assert_eq!(read.len(), 1002, "every Service is read in its turn");
    assert!(media_read > 10, "{media_read}");
    assert!(out_of_turn([("one", MOST_READ)].into_iter(), 0).is_empty());
}
