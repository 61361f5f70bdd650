package credential

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever comes when, by whatever clocks, no credential is believed twice, and none outside
// the window.
func TestOnceIsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o once
		start := time.Unix(1_800_000_000, 0)
		now, since := start, start.Add(-time.Hour)
		used := map[int]bool{}
		made := map[int]time.Time{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "later")) * time.Second)
			n := rapid.IntRange(0, 20).Draw(t, "which")
			if _, ok := made[n]; !ok {
				made[n] = now.Add(time.Duration(rapid.IntRange(-400, 400).Draw(t, "skew")) * time.Second)
			}
			err := o.admit([sha256.Size]byte{byte(n)}, &Credential{Encoded: made[n], Decoded: now}, since)
			late := now.Sub(made[n]).Abs() > window
			switch {
			case err == nil && (used[n] || late):
				t.Fatalf("%d is believed: used %v, %s old", n, used[n], now.Sub(made[n]))
			case err != nil && !used[n] && !late:
				t.Fatalf("%d is refused: %v", n, err)
			case late && !errors.Is(err, ErrExpired):
				t.Fatalf("%d is %s old: %v", n, now.Sub(made[n]), err)
			}
			used[n] = used[n] || err == nil
		}
	})
}

// What is remembered is bounded: beyond that none is believed, until time has passed.
func TestRememberedIsBounded(t *testing.T) {
	var o once
	now := time.Now()
	send := func(n int, at time.Time) error {
		var id [sha256.Size]byte
		binary.BigEndian.PutUint64(id[:], uint64(n))
		return o.admit(id, &Credential{Encoded: at, Decoded: at}, now.Add(-time.Hour))
	}
	for i := range mostRemembered {
		if err := send(i, now); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := send(mostRemembered, now); !errors.Is(err, ErrDown) {
		t.Errorf("one too many: %v", err)
	}
	later := now.Add(2*window + time.Second)
	for i := range 3 {
		if err := send(mostRemembered+i, later.Add(time.Duration(i)*(2*window+time.Second))); err != nil {
			t.Errorf("later: %v", err)
		}
	}
	if n := len(o.new) + len(o.aged); n > 2 {
		t.Errorf("%d are remembered", n)
	}
}

// Whatever unmunge prints, a credential is only read from lines that stand before
// the payload.
func FuzzParse(f *testing.F) {
	f.Add("STATUS: Success (0)\nENCODE_TIME: 2026-01-01 (1767225600)\nUID: root (0)\n\npayload")
	f.Add("STATUS: Expired credential (15)\nUID: a(b) (1000)\n")
	f.Add("\n\nUID: root (0)")
	f.Add("UID: root (-1)\nSTATUS: x (99999999999999999999)\n\n")
	f.Fuzz(func(t *testing.T, out string) {
		c, status := parse(out)
		head, payload, _ := strings.Cut(out, "\n\n")
		if c != nil && (!strings.Contains(head, "UID") || c.Payload != payload) {
			t.Errorf("%q: %+v", out, c)
		}
		if status != -1 && !strings.Contains(head, "STATUS") {
			t.Errorf("%q: status %d", out, status)
		}
	})
}

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
