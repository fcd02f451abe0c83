use super::*;

const GIB: u64 = 1 << 30;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn filesystem(used: u64) -> Filesystem {
    Filesystem {
        mount: "/var".into(),
        device: "/dev/vda4".into(),
        fstype: "xfs".into(),
        capacity_bytes: 100 * GIB,
        used_bytes: used,
        available_bytes: 100 * GIB - used,
        inodes: 1000,
        inodes_free: 900,
    }
}

fn database() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(include_str!("../../../migrations/0001_history.sql")).unwrap();
    connection
}

#[test]
fn filesystem_is_identified_by_mount_and_device() {
    let known =
        |id, mount: &str, fstype: &str, device: &str, capacity_bytes, last_seen: i64| KnownFilesystem {
            id,
            mount: mount.into(),
            fstype: fstype.into(),
            device: device.into(),
            capacity_bytes,
            first_seen: Timestamp::UNIX_EPOCH,
            last_seen: Timestamp::from_second(last_seen).unwrap(),
        };
    let all = [
        known(1, "/var", "xfs", "/dev/sda4", 100, 10),
        known(2, "/var", "xfs", "/dev/sda4", 200, 20),
        known(3, "/var", "ext4", "/dev/sda4", 100, 30),
        known(4, "/", "xfs", "/dev/sda1", 50, 30),
    ];
    for (mount, fstype, device, capacity, expected) in [
        ("/var", "xfs", "/dev/sda4", 100, Some(1)),
        ("/var", "xfs", "/dev/sda4", 200, Some(2)),
        // Grown: the filesystem that was seen last.
        ("/var", "xfs", "/dev/sda4", 300, Some(2)),
        // Renamed.
        ("/var", "xfs", "/dev/sdb4", 100, Some(1)),
        ("/", "xfs", "/dev/nvme0n1p1", 50, Some(4)),
        // Replaced, reformatted, or mounted elsewhere.
        ("/var", "xfs", "/dev/sdb4", 400, None),
        ("/var", "btrfs", "/dev/sda4", 100, None),
        ("/mnt", "xfs", "/dev/sda4", 100, None),
    ] {
        let seen = Filesystem {
            mount: mount.into(),
            device: device.into(),
            fstype: fstype.into(),
            capacity_bytes: capacity,
            ..filesystem(0)
        };
        assert_eq!(
            identify(&all, &seen).map(|known| known.id),
            expected,
            "{mount} {fstype} {device} {capacity}"
        );
    }
}

#[test]
fn horizons_are_whole_spans() {
    let now = at("2026-11-21T13:37:11.5Z");
    assert_eq!(horizon(now, KEEP_SINGLE, Span::Day), at("2026-11-14T00:00:00Z"));
    assert_eq!(horizon(now, KEEP_DAYS, Span::Day), at("2024-11-20T00:00:00Z"));
    // A node without a set clock.
    let early = horizon(at("1970-01-01T00:00:00Z"), KEEP_SINGLE, Span::Day);
    assert_eq!(early, at("1969-12-25T00:00:00Z"));
}

#[test]
fn rolling_up_keeps_minimum_mean_and_maximum() {
    let points = [
        ("2026-11-21T00:00:00Z", 10),
        ("2026-11-21T13:05:00Z", 90),
        ("2026-11-21T23:59:59.999999Z", 20),
        ("2026-11-22T00:00:00Z", 7),
    ]
    .map(|(time, used)| Point::reading(at(time), &filesystem(used)));
    let days = roll_up(&points);
    assert_eq!(days.len(), 2);
    assert_eq!((days[0].time, days[0].span, days[0].readings), (at("2026-11-21T00:00:00Z"), Span::Day, 3));
    assert_eq!(days[0].used, Range { min: 10, avg: 40, max: 90 });
    assert_eq!(days[0].available, Range { min: 100 * GIB - 90, avg: 100 * GIB - 40, max: 100 * GIB - 10 });

    // XFS: 100 inodes are used, of any total number.
    let readings =
        [("2026-11-21T13:00:00Z", 200), ("2026-11-21T13:05:00Z", 1000), ("2026-11-21T13:10:00Z", 100)].map(
            |(time, inodes)| {
                let xfs = Filesystem { inodes, inodes_free: inodes - 100, ..filesystem(10) };
                Point::reading(at(time), &xfs)
            },
        );
    let day = roll_up(&readings)[0];
    assert_eq!((day.inodes, day.inodes_free), (1000, Range { min: 900, avg: 900, max: 900 }));

    // A filesystem that grew: the percentages before and after are not merged.
    let grown = Filesystem { capacity_bytes: 200 * GIB, ..filesystem(0) };
    let points = [points[0], Point::reading(at("2026-11-21T13:30:00Z"), &grown)];
    assert_eq!(roll_up(&points).len(), 2);
}

#[test]
fn percentage_is_measured_as_by_the_kubelet() {
    let reserve = Filesystem { available_bytes: 15 * GIB, ..filesystem(80 * GIB) };
    assert_eq!(Point::reading(at("2026-11-21T13:00:00Z"), &reserve).used_percent().avg, 85.0);
    let empty = Point { capacity_bytes: 0, ..Point::reading(at("2026-11-21T13:00:00Z"), &reserve) };
    assert_eq!(empty.used_percent().avg, 0.0);
}

#[test]
fn each_reading_is_a_point() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    for (time, used) in
        [("2026-11-21T13:00:00Z", 10), ("2026-11-21T13:00:20Z", 30), ("2026-11-21T13:00:59Z", 5)]
    {
        record(&tx, at(time), &[filesystem(used)]).unwrap();
        record(&tx, at(time), &[filesystem(used)]).unwrap();
    }
    let absurd = [
        Filesystem { capacity_bytes: 0, available_bytes: 0, mount: "/a".into(), ..filesystem(0) },
        Filesystem { available_bytes: 101 * GIB, mount: "/b".into(), ..filesystem(0) },
    ];
    record(&tx, at("2026-11-21T13:05:00Z"), &absurd).unwrap();
    let mut all = series(&tx, None, None).unwrap();
    let now = at("2026-11-21T13:06:00Z");
    let elsewhere = Filesystem { mount: "/c".into(), ..filesystem(1) };
    add_present(&mut all, now, &[elsewhere, filesystem(7)]);
    add_present(&mut all, now, &[filesystem(7)]);
    assert_eq!(all.len(), 1);
    let points = all[0].points.iter();
    let points: Vec<_> = points.map(|point| (point.used.min, point.used.max, point.readings)).collect();
    assert_eq!(points, [(10, 10, 1), (30, 30, 1), (5, 5, 1), (7, 7, 1)]);
}

#[test]
fn endless_loop_of_readings_is_bounded() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    for second in 0..180_i64 {
        let time = at("2026-11-21T13:00:00Z") + SignedDuration::from_secs(second);
        record(&tx, time, &[filesystem(second.unsigned_abs())]).unwrap();
    }
    let points = series(&tx, None, None).unwrap().remove(0).points;
    assert!((24..=4 * 8).contains(&points.len()), "{}", points.len());
    assert_eq!(points.last().unwrap().used.avg, 179, "the newest is always kept");
}

#[test]
fn points_that_overlap_the_window_are_returned() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    record(&tx, at("2026-11-01T13:20:00Z"), &[filesystem(10)]).unwrap();
    record(&tx, at("2026-11-21T13:20:00Z"), &[filesystem(10)]).unwrap();
    thin(&tx, at("2026-11-21T13:20:00Z")).unwrap();
    let points = |since: &str| series(&tx, Some(at(since)), Some("/var")).unwrap()[0].points.len();
    assert_eq!(points("2026-11-01T23:50:00Z"), 2, "its day overlaps");
    assert_eq!(points("2026-11-02T00:10:00Z"), 1);
    assert_eq!(points("2026-11-21T13:20:00Z"), 1);
    assert_eq!(points("2026-11-21T13:20:01Z"), 0);
    assert!(series(&tx, None, Some("/other")).unwrap().is_empty());
}

#[test]
fn late_reading_joins_its_span() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    let now = at("2026-11-21T13:20:00Z");
    record(&tx, at("2026-11-01T13:20:00Z"), &[filesystem(10)]).unwrap();
    thin(&tx, now).unwrap();
    record(&tx, at("2026-11-01T13:40:00Z"), &[filesystem(50)]).unwrap();
    thin(&tx, now).unwrap();
    let series = series(&tx, None, None).unwrap();
    assert_eq!(series[0].points.len(), 1);
    assert_eq!(series[0].points[0].used, Range { min: 10, avg: 30, max: 50 });
    assert_eq!(series[0].filesystem.last_seen, at("2026-11-01T13:40:00Z"));
}

#[test]
fn longest_mount_point_contains_a_path() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    for mount in ["/", "/var", "/var/lib/containers"] {
        let filesystem = Filesystem { mount: mount.into(), ..filesystem(1) };
        record(&tx, at("2026-11-21T13:00:00Z"), &[filesystem]).unwrap();
    }
    let known = filesystems(&tx).unwrap();
    for (path, mount) in [
        ("/var", Some("/var")),
        ("/var/lib/containers/storage", Some("/var/lib/containers")),
        ("/var/library", Some("/var")),
        ("/usr", Some("/")),
        ("relative", None),
    ] {
        assert_eq!(mount_of(&known, Path::new(path)), mount, "{path}");
    }
}
