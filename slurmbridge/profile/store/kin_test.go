package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

func script(n int) appid.App { return appid.Identify("", fmt.Appendf(nil, "srun ./lj -n %d", n), "") }

func constant(app string, seconds, mib float64) *rlcore.Profile {
	return &rlcore.Profile{App: app, DurationS: seconds, PeriodS: seconds, Series: []rlcore.Use{{GPU: 0.5, MemMiB: mib}}, Source: "imported"}
}

func TestRelatives(t *testing.T) {
	ctx := context.Background()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	want := script(2000)
	if _, err := s.Relative(ctx, "ann", want.Key, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("never seen: %v", err)
	}
	for _, user := range []string{"ann", "bob"} {
		if err := s.SetFamily(ctx, user, want); err != nil {
			t.Fatal(err)
		}
		if err := s.SetFamily(ctx, user, script(1000)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Relative(ctx, "ann", want.Key, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("without a profile: %v", err)
	}
	if ok, err := s.Learn(ctx, script(1000).Key, record(1, "ann", 50)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	p, err := s.Relative(ctx, "ann", want.Key, "")
	if err != nil || p.App != want.Key || p.Peak().MemMiB < 2000 || p.DurationSD <= 0 || !strings.Contains(p.Source, script(1000).Key) {
		t.Errorf("%+v %v", p, err)
	}
	// Nobody's runs change what another user's jobs are held to be.
	if p, err := s.Relative(ctx, "bob", want.Key, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("bob's job is held to be like ann's: %+v %v", p, err)
	}
	// The site's profiles are everybody's.
	if _, err := s.ImportFor(ctx, []Imported{{App: script(1000), Profile: constant(script(1000).Key, 60, 500)}}); err != nil {
		t.Fatal(err)
	}
	if p, err := s.Relative(ctx, "bob", want.Key, ""); err != nil || p.Peak().MemMiB < 500 {
		t.Errorf("%+v %v", p, err)
	}
	if err := s.SetFamily(ctx, "ann", script(99000)); err != nil {
		t.Fatal(err)
	}
	if p, err := s.Relative(ctx, "ann", script(99000).Key, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("far away: %+v %v", p, err)
	}
	// What has a profile is not forgotten, the rest is.
	if err := s.TidyFamilies(ctx, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if a, err := s.Family(ctx, "ann", script(1000).Key); err != nil || a.Family != want.Family || a.Name != "lj" || len(a.Sizes) != 1 || a.Sizes[0].Value != 1000 {
		t.Errorf("%+v %v", a, err)
	}
	if a, err := s.Family(ctx, "ann", script(99000).Key); err != nil || a.Family != "" {
		t.Errorf("%+v %v", a, err)
	}
}

func TestImportFor(t *testing.T) {
	ctx := context.Background()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	key := script(7).Key
	if ok, err := s.Learn(ctx, key, record(1, "ann", 50)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	kept, err := s.ImportFor(ctx, []Imported{
		{User: "ann", App: script(7), Profile: constant(key, 60, 500)},
		{User: "bob", App: script(7), Profile: constant(key, 60, 500)},
		{User: "bob", App: appid.App{Key: "train"}, Profile: constant("train", 9, 1)},
	})
	if err != nil || kept != 1 {
		t.Fatal(kept, err)
	}
	if p, err := s.Lookup(ctx, "ann", key, ""); err != nil || p.DurationS != 50 {
		t.Errorf("what was measured gave way to what was imported: %+v %v", p, err)
	}
	if p, err := s.Lookup(ctx, "bob", key, ""); err != nil || p.DurationS != 60 {
		t.Errorf("%+v %v", p, err)
	}
	if _, err := s.Lookup(ctx, "ann", "train", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("bob's import is ann's: %v", err)
	}
	// All or none.
	if _, err := s.ImportFor(ctx, []Imported{{Profile: constant("one", 1, 1)}, {Profile: constant("two", -1, 1)}}); err == nil {
		t.Error("a bad profile was taken")
	}
	if _, err := s.Lookup(ctx, "", "one", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("half an import was taken: %v", err)
	}
}
