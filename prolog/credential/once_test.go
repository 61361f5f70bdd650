package credential

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
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
