//! One scan: find the stores, read their records, weigh them, fill the inventory.
