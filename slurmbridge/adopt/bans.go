package adopt

import (
	"maps"
	"slices"
	"time"
)

// What follows from adopted jobs that ran slower than their contract: the application isn't adopted again for a while,
// and several of one account within a day stop the rule.
const (
	BannedFor   = 7 * 24 * time.Hour
	countedFor  = 24 * time.Hour
	stopsAfter  = 2
	mostOfOneAt = 64 // ends remembered by rule and account
)

// Bars reports whether an application is barred from adoption now. slower is when one of its jobs was slower than the
// contract, zero = never.
func Bars(slower, now time.Time) bool { return !slower.IsZero() && now.Sub(slower) < BannedFor }

// Stops says which rules are stopped, and which jobs count toward that. The zero value stops none.
type Stops struct {
	// Ends holds when jobs ended that were slower than their contracts, by rule and account.
	Ends map[string]map[string][]time.Time `json:"ends,omitempty"`
	// At holds when a rule was stopped.
	At map[string]time.Time `json:"at,omitempty"`
}

// Broke notes that an adopted job of an account was slower than its contract, and returns whether that stops its rule.
func (s *Stops) Broke(account, rule string, at time.Time) (stops bool) {
	if s.Ends == nil {
		s.Ends = map[string]map[string][]time.Time{}
	}
	old := func(t time.Time) bool { return at.Sub(t) > countedFor }
	for name, of := range s.Ends {
		maps.DeleteFunc(of, func(_ string, all []time.Time) bool { return old(all[len(all)-1]) })
		if len(of) == 0 {
			delete(s.Ends, name)
		}
	}
	if s.Ends[rule] == nil {
		s.Ends[rule] = map[string][]time.Time{}
	}
	ends := slices.DeleteFunc(append(s.Ends[rule][account], at), old)
	s.Ends[rule][account] = ends[max(0, len(ends)-mostOfOneAt):]
	if len(ends) < stopsAfter {
		return false
	}
	if s.At == nil {
		s.At = map[string]time.Time{}
	}
	maps.DeleteFunc(s.At, func(_ string, last time.Time) bool { return at.Sub(last) > BannedFor })
	s.At[rule] = at
	return true
}

// Stopped reports whether a rule is stopped now.
func (s *Stops) Stopped(rule *Rule, now time.Time) bool {
	return len(s.At) > 0 && Bars(s.At[rule.String()], now) // the text of a rule isn't made for nothing
}

// Count returns how many rules are stopped now.
func (s *Stops) Count(now time.Time) (n int) {
	for _, last := range s.At {
		if Bars(last, now) {
			n++
		}
	}
	return n
}
