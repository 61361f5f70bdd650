package credential

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// slow takes a while for each credential, as a process does, and counts.
type slow struct {
	now, most atomic.Int32
	release   chan struct{}
}

func (s *slow) Decode(ctx context.Context, _ string) (*Credential, error) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	select {
	case <-s.release:
	case <-ctx.Done():
	}
	return &Credential{UID: 7}, nil
}

// A host that floods the controller with junk keeps no other host waiting, and takes two
// processes at most.
func TestTurnsAreFair(t *testing.T) {
	s := &slow{release: make(chan struct{})}
	turns := &Turns{Method: s}
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	for range 200 {
		flood.Go(func() { _, _ = turns.Decode(ctx, "hostile", "x") })
	}
	for s.now.Load() < mostOfHost {
		time.Sleep(time.Millisecond)
	}
	done := make(chan error)
	go func() {
		_, err := turns.Decode(t.Context(), "n1", "x")
		done <- err
	}()
	for s.now.Load() < mostOfHost+1 {
		time.Sleep(time.Millisecond) // n1's is decoded, whatever the others do
	}
	cancel()
	s.release <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
	flood.Wait()
	if most := s.most.Load(); most > mostOfHost+1 {
		t.Errorf("%d at once", most)
	}
	if _, hosts := turns.turns.Held(); hosts != 0 {
		t.Errorf("%d hosts are remembered", hosts)
	}
}

func TestTurnsInAll(t *testing.T) {
	s := &slow{release: make(chan struct{})}
	turns := &Turns{Method: s}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() { _, _ = turns.Decode(t.Context(), strconv.Itoa(i), "x") })
	}
	for range 40 {
		s.release <- struct{}{}
	}
	all.Wait()
	if most := s.most.Load(); most > mostAtOnce {
		t.Errorf("%d at once", most)
	}
}
