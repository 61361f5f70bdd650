// Package recent is memory with bounds: a map that forgets what was noted longest ago.
package recent

import (
	"iter"
	"maps"
)

// Map keeps what was noted last. Users choose names of applications freely, so each owner has a part of the room:
// however many names one user invents, no other user's entries are forgotten for them.
type Map[K comparable, V any] struct {
	most, ofOwner int
	owner         func(K) string
	entries       map[K]*entry[V]
	counts        map[string]int // by owner
	clock         int            // of what was noted
}

type entry[V any] struct {
	value V
	noted int // clock
}

// New returns a map of at most so many entries, ofOwner of them of one owner; owner "" has no bound of its own.
func New[K comparable, V any](most, ofOwner int, owner func(K) string) *Map[K, V] {
	return &Map[K, V]{most: most, ofOwner: ofOwner, owner: owner, entries: map[K]*entry[V]{}, counts: map[string]int{}}
}

// Put notes a value. Where there is no room, the owner's oldest entry is forgotten, or else the oldest of all.
func (m *Map[K, V]) Put(k K, v V) {
	m.clock++
	if e := m.entries[k]; e != nil {
		e.value, e.noted = v, m.clock
		return
	}
	of := m.owner(k)
	if of != "" && m.counts[of] >= m.ofOwner {
		m.forget(func(k K) bool { return m.owner(k) == of })
	} else if len(m.entries) >= m.most {
		m.forget(func(K) bool { return true })
	}
	m.entries[k] = &entry[V]{v, m.clock}
	m.counts[of]++
}

// forget removes the oldest entry of some.
func (m *Map[K, V]) forget(some func(K) bool) {
	var oldest K
	at := -1
	for k, e := range m.entries {
		if (at < 0 || e.noted < at) && some(k) {
			oldest, at = k, e.noted
		}
	}
	m.Delete(oldest)
}

// Get returns what was noted.
func (m *Map[K, V]) Get(k K) (v V, ok bool) {
	e := m.entries[k]
	if e == nil {
		return v, false
	}
	return e.value, true
}

// Has reports whether there is an entry.
func (m *Map[K, V]) Has(k K) bool { return m.entries[k] != nil }

// Delete removes an entry that isn't needed any more; it isn't forgotten.
func (m *Map[K, V]) Delete(k K) {
	if m.entries[k] == nil {
		return
	}
	delete(m.entries, k)
	of := m.owner(k)
	if m.counts[of]--; m.counts[of] == 0 {
		delete(m.counts, of)
	}
}

// Len is how many entries there are.
func (m *Map[K, V]) Len() int { return len(m.entries) }

// All are the entries, in no order.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for k, e := range m.entries {
			if !yield(k, e.value) {
				return
			}
		}
	}
}

// Clone returns a map that shares nothing with m.
func (m *Map[K, V]) Clone() *Map[K, V] {
	out := *m
	out.entries, out.counts = make(map[K]*entry[V], len(m.entries)), maps.Clone(m.counts)
	for k, e := range m.entries {
		one := *e
		out.entries[k] = &one
	}
	return &out
}
