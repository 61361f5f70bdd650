package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// fits reports whether a folder has room for need bytes.
func (f *folder) fits(need int64) bool { return f.used+need <= f.limit }

// cutOthers makes room for need bytes with what costs no summary: files that were
// set aside go first, then series, oldest first. It reports whether it was enough.
func (s *Spool) cutOthers(f *folder, need int64) bool {
	for len(f.aside) > 0 && !f.fits(need) {
		if err := os.Remove(filepath.Join(f.dir, f.aside[0].name)); err != nil && !gone(err) {
			break
		}
		f.used -= f.aside[0].size
		f.aside = f.aside[1:]
	}
	if f.fits(need) {
		return true
	}
	for _, it := range slices.Clone(s.items) {
		if it.in == f && !it.cut && !s.cut(it) {
			break
		}
		if f.fits(need) {
			return true
		}
	}
	return false
}

// cut drops the series of a record that waits. It returns false where the folder
// can't be read or written.
func (s *Spool) cut(it *item) bool {
	r, err := read(it.path())
	if err != nil {
		return s.unreadable(it, err) == nil
	}
	it.cut = true
	if r.Cut && len(r.Series) == 0 {
		return true
	}
	r.DropSeries()
	body, err := json.Marshal(r)
	if err != nil {
		return false
	}
	if err := s.write(it.in, it.name, body); err != nil {
		it.cut = false
		return false
	}
	it.in.used += int64(len(body)) - it.size
	it.size = int64(len(body))
	s.Metrics.series.Inc()
	return true
}

// dropOldest makes room for need bytes with whole records, oldest first. It
// reports whether it was enough.
func (s *Spool) dropOldest(f *folder, need int64) bool {
	if need > f.limit || f.fits(need) {
		return need <= f.limit
	}
	n := 0
	for _, it := range slices.Clone(s.items) {
		if it.in != f {
			continue
		}
		s.remove(it)
		s.Metrics.dropped.WithLabelValues("full").Inc()
		if n++; f.fits(need) {
			break
		}
	}
	s.Log.Error("the spool is full: the oldest records are lost; is the controller there?", "folder", f.dir, "lost", n)
	return f.fits(need)
}

// remove takes a record off the list and removes its file. If the file can't be removed, the record
// is delivered again after a restart, and known there.
func (s *Spool) remove(it *item) {
	if !s.unlist(it) {
		return
	}
	if err := os.Remove(it.path()); err != nil && !gone(err) {
		s.Log.Warn("a record's file can't be removed", "err", err)
		return
	}
	it.in.used -= it.size
}

// setAside takes a record off the list and keeps its file until space is needed.
func (s *Spool) setAside(it *item, suffix string) {
	if !s.unlist(it) {
		return
	}
	name := it.name + suffix
	if err := os.Rename(it.path(), filepath.Join(it.in.dir, name)); err != nil {
		s.Log.Warn("a record can't be set aside", "err", err)
		return
	}
	// A run that is set aside again takes the place of its first file.
	it.in.aside = slices.DeleteFunc(it.in.aside, func(f file) bool {
		if f.name == name {
			it.in.used -= f.size
		}
		return f.name == name
	})
	it.in.aside = append(it.in.aside, file{name, it.size})
}

// unreadable sees to a record that could not be read. It returns an error where
// that is the disk's trouble, and may be over later.
func (s *Spool) unreadable(it *item, err error) error {
	switch {
	case gone(err):
		s.remove(it)
	case errors.Is(err, errHalf):
		s.Log.Error("a record can't be read; set aside", "file", it.path(), "err", err)
		s.setAside(it, unreadable)
		s.Metrics.dropped.WithLabelValues("unreadable").Inc()
	default:
		return fmt.Errorf("read spool: %w", err)
	}
	return nil
}
