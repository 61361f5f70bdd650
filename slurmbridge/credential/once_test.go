package credential

import (
	"context"
	"crypto/sha256"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Whatever comes when, by whatever clocks, no credential is believed twice, and none outside the window.
func TestOnceIsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o once
		start := time.Unix(1_800_000_000, 0)
		now := start
		used := map[int]bool{}
		made := map[int]time.Time{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "later")) * time.Second)
			n := rapid.IntRange(0, 20).Draw(t, "which")
			if _, ok := made[n]; !ok {
				made[n] = now.Add(time.Duration(rapid.IntRange(-400, 400).Draw(t, "skew")) * time.Second)
			}
			err := o.admit([sha256.Size]byte{byte(n)}, &Credential{Encoded: made[n], Decoded: now}, 24*time.Hour)
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
		return o.admit(sha256.Sum256([]byte(strconv.Itoa(n))), &Credential{Encoded: at, Decoded: at}, time.Hour)
	}
	for i := range mostRemembered {
		must.OK(t, send(i, now))
	}
	must.Is(t, send(mostRemembered, now), ErrDown, "one too many")
	later := now.Add(2*window + time.Second)
	for i := range 3 {
		must.OK(t, send(mostRemembered+i, later.Add(time.Duration(i)*(2*window+time.Second))))
	}
	if n := len(o.new) + len(o.aged); n > 2 {
		t.Errorf("%d are remembered", n)
	}
}

// Whatever unmunge prints, a credential is only read from lines that stand before the payload.
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

// slow takes as long for each credential as the test wants, and counts those that it has.
type slow struct {
	now, most atomic.Int32
	release   chan struct{}
}

func (s *slow) Decode(context.Context, string) (*Credential, error) {
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	defer s.now.Add(-1)
	<-s.release
	return nil, ErrInvalid
}

// A host that floods the controller with junk keeps no other host waiting, and takes two processes at most; all hosts
// together take a few more.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{release: make(chan struct{})}
		turns := &Turns{Method: s}
		ctx, giveUp := context.WithCancel(t.Context())
		var gone atomic.Int32
		ask := func(ctx context.Context, host string, now int32) {
			go func() { _, _ = turns.Decode(ctx, host, "x"); gone.Add(1) }()
			synctest.Wait()
			must.Equal(t, s.now.Load(), now, "%s is there", host)
		}
		for n := range int32(200) {
			ask(ctx, "hostile", min(n+1, mostOfHost))
		}
		for n := range int32(40) {
			ask(t.Context(), strconv.Itoa(int(n)), min(mostOfHost+n+1, mostAtOnce))
		}
		giveUp()
		synctest.Wait()
		must.Equal(t, gone.Load(), 200-mostOfHost, "who gave up")
		close(s.release)
		time.Sleep(time.Hour) // until all of them have had their turn and its penalty
		must.Equal(t, s.most.Load(), mostAtOnce)
		all, hosts := turns.turns.Held()
		must.Equal(t, all+hosts, 0, "turns and hosts that are remembered")
	})
}
