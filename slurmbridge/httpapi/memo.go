package httpapi

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// memo keeps answers that cost much to make. One that is made is made once for all who wait for it, and nobody who
// waits for another one waits for it: no lock is held meanwhile.
type memo[V any] struct {
	now    func() time.Time
	fresh  time.Duration // how old an answer may be
	within time.Duration // how long one may take to be made
	most   int           // how many are kept

	making singleflight.Group
	mu     sync.Mutex
	kept   map[string]made[V]
}

// made is an answer, and when it was asked for.
type made[V any] struct {
	at     time.Time
	answer V
}

// get returns the answer to a question, or ctx's error where that ends first: the answer is then made all the same, for
// those who ask later. An error is told to all who wait, and not kept.
func (m *memo[V]) get(ctx context.Context, key string, read func(context.Context) (V, error)) (V, error) {
	m.mu.Lock()
	at := m.now()
	a, ok := m.kept[key]
	m.mu.Unlock()
	if age := at.Sub(a.at); ok && age >= 0 && age < m.fresh {
		return a.answer, nil
	}
	done := m.making.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.within)
		defer cancel()
		answer, err := read(ctx)
		if err == nil {
			m.keep(key, made[V]{at, answer})
		}
		return answer, err
	})
	select {
	case r := <-done:
		return r.Val.(V), r.Err //nolint:errcheck,forcetypeassert // an answer always
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}

func (m *memo[V]) keep(key string, a made[V]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil || len(m.kept) >= m.most {
		m.kept = map[string]made[V]{}
	}
	m.kept[key] = a
}
