package httpapi

import (
	"context"
	"sync"
	"time"
)

// memo keeps answers that cost much to make. One that is made is made once for all who wait for it, and nobody who
// waits for another one waits for it: no lock is held meanwhile.
type memo[K comparable, V any] struct {
	now    func() time.Time
	fresh  time.Duration // how old an answer may be
	within time.Duration // how long one may take to be made
	most   int           // how many are kept

	mu   sync.Mutex
	kept map[K]*making[V]
}

// making is an answer that is made, or was.
type making[V any] struct {
	at     time.Time
	done   chan struct{} // closed when answer and err are there
	answer V
	err    error
}

// get returns the answer to a question, or ctx's error where that ends first: the answer is then made all the same, for
// those who ask later. An error is told to all who wait, and not kept.
func (m *memo[K, V]) get(ctx context.Context, key K, read func(context.Context) (V, error)) (V, error) {
	a := m.begin(ctx, key, read)
	select {
	case <-a.done:
		return a.answer, a.err
	default:
	}
	select {
	case <-a.done:
		return a.answer, a.err
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}

// begin returns the answer that there is or is being made, otherwise begins to make one.
func (m *memo[K, V]) begin(ctx context.Context, key K, read func(context.Context) (V, error)) *making[V] {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if a := m.kept[key]; a != nil && (!isDone(a.done) || now.Sub(a.at) >= 0 && now.Sub(a.at) < m.fresh) {
		return a
	}
	a := &making[V]{at: now, done: make(chan struct{})}
	if m.kept == nil || len(m.kept) >= m.most && m.kept[key] == nil {
		m.kept = map[K]*making[V]{} // those that wait for one have it
	}
	m.kept[key] = a
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.within)
		defer cancel()
		defer close(a.done)
		if a.answer, a.err = read(ctx); a.err != nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.kept[key] == a {
				delete(m.kept, key)
			}
		}
	}()
	return a
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
