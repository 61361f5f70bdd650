package adopt

import (
	"maps"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// What follows from adopted jobs that ran slower than their contract: the application isn't adopted again for a while,
// and several of one account within a day stop the rule.
const (
	BannedFor   = 7 * 24 * time.Hour
	countedFor  = 24 * time.Hour
	stopsAfter  = 2
	mostOfOneAt = 64 // ends remembered by rule and account
)

// Bans are what broken contracts forbid. The zero value forbids nothing.
type Bans struct {
	apps    map[rlcore.Identity]time.Time // when it last was slower
	ends    map[origin][]time.Time
	stopped map[string]time.Time // by rule
}

// origin is where a job that was slower comes from.
type origin struct{ rule, account string }

// Broke notes that an adopted job of an application was slower than its contract, and returns whether that stops its
// rule.
func (b *Bans) Broke(app rlcore.Identity, account, rule string, at time.Time) (stops bool) {
	if b.apps == nil {
		b.apps, b.ends, b.stopped = map[rlcore.Identity]time.Time{}, map[origin][]time.Time{}, map[string]time.Time{}
	}
	if app.App != "" && b.apps[app].Before(at) {
		b.apps[app] = at
	}
	maps.DeleteFunc(b.apps, func(_ rlcore.Identity, last time.Time) bool { return at.Sub(last) > BannedFor })
	maps.DeleteFunc(b.stopped, func(_ string, last time.Time) bool { return at.Sub(last) > BannedFor })
	maps.DeleteFunc(b.ends, func(_ origin, all []time.Time) bool { return at.Sub(all[len(all)-1]) > countedFor })
	of := origin{rule, account}
	ends := slices.DeleteFunc(append(b.ends[of], at), func(t time.Time) bool { return at.Sub(t) > countedFor })
	b.ends[of] = ends[max(0, len(ends)-mostOfOneAt):]
	if len(ends) < stopsAfter {
		return false
	}
	b.stopped[rule] = at
	return true
}

// Bars reports whether an application isn't to be adopted now.
func (b *Bans) Bars(app rlcore.Identity, at time.Time) bool {
	if b == nil {
		return false
	}
	last, is := b.apps[app]
	return is && at.Sub(last) < BannedFor
}

// Stops reports whether a rule is stopped now.
func (b *Bans) Stops(rule *Rule, at time.Time) bool {
	if b == nil || len(b.stopped) == 0 { // the text of a rule isn't made for nothing
		return false
	}
	last, is := b.stopped[rule.String()]
	return is && at.Sub(last) < BannedFor
}

// Count is how many applications are kept out and how many rules are stopped.
func (b *Bans) Count(at time.Time) (apps, rules int) {
	for app := range b.apps {
		if b.Bars(app, at) {
			apps++
		}
	}
	for _, last := range b.stopped {
		if at.Sub(last) < BannedFor {
			rules++
		}
	}
	return apps, rules
}
