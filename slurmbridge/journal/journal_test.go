package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

func open(t testing.TB, path string) *Journal {
	t.Helper()
	db := must.Get(database.OpenOrReplace(t.Context(), path, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { db.Close() })
	return New(db)
}

func group(id int64, state job.GroupState, refs ...string) *job.Group {
	g := &job.Group{ID: id, Kind: job.StartNow, State: state, Node: "n1", Decided: time.UnixMilli(1000 * id)}
	for _, r := range refs {
		g.Members = append(g.Members, job.Member{Ref: r, Shares: 50, WasGres: "mps:100"})
	}
	return g
}

func TestRestartFindsOpenGroups(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "j.db")
	j := open(t, path)
	for _, g := range []*job.Group{
		group(1, job.Done, "10"), group(2, job.Released, "11", "12"), group(3, job.Preparing, "13"),
	} {
		must.OK(t, j.SaveGroup(ctx, g))
	}
	book := tracker.New()
	book.Wait("20").Strikes = 1
	book.Unmanaged["21"] = "its owner edited it"
	book.Wait("22") // of which there is nothing to say
	book.Done["23"] = &history.RunState{UnstartedS: 3}
	must.OK(t, j.SaveTracker(ctx, book))
	got := must.Get(open(t, path).Load(ctx))(t)
	if len(got.Groups) != 2 || got.Groups[2].Members[1].Ref != "12" || got.Groups[3].State != job.Preparing {
		t.Errorf("groups %v", got.Groups)
	}
	must.Equal(t, got.NextID, 4, "next number")
	if got.Waits["20"].Strikes != 1 || got.Unmanaged["21"] == "" || got.Waits["22"] != nil ||
		got.Done["23"].UnstartedS != 3 || got.Plain == nil || got.Loans == nil {
		t.Errorf("book %+v", got)
	}
}

// TestDamagedJournal: what can be read is read, and no number is given out twice.
func TestDamagedJournal(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "j.db")
	j := open(t, path)
	for id := range int64(3) {
		must.OK(t, j.SaveGroup(ctx, group(id+1, job.Released, fmt.Sprint(10+id))))
	}
	must.Get(j.db.Exec(`UPDATE bridge_groups SET body = '{"members": 7' WHERE id = 2`))(t)
	got, err := open(t, path).Load(ctx)
	must.Fail(t, err, "group 2")
	if len(got.Groups) != 2 || got.Groups[1] == nil || got.Groups[3] == nil || got.NextID != 4 {
		t.Errorf("groups %v, the next is %d", got.Groups, got.NextID)
	}
	must.Get(j.db.Exec(`DROP TABLE bridge_groups`))(t)
	if got, err := j.Load(ctx); err == nil || got == nil || got.NextID < 1_000_000 {
		t.Errorf("without groups: %+v %v", got, err)
	}
	// A file that took a damaged one's place doesn't begin at 1 either.
	fresh := filepath.Join(t.TempDir(), "j.db")
	must.OK(t, os.WriteFile(fresh, []byte(strings.Repeat("noise", 1000)), 0o600))
	if got, err := open(t, fresh).Load(ctx); err != nil || got.NextID < 1_000_000 {
		t.Errorf("after damage: %+v %v", got, err)
	}
}

func TestStory(t *testing.T) {
	ctx := context.Background()
	j := open(t, filepath.Join(t.TempDir(), "j.db"))
	must.Is(t, must.Err(j.Story(ctx, "10")), ErrNotFound, "of nothing")
	must.OK(t, j.SaveGroup(ctx, group(1, job.Released, "10", "11")))
	gres := "mps:50"
	c := &job.Change{
		Step: "prepare", Update: job.Update{Jobs: []string{"10", "11"}, Gres: &gres},
		Was: map[string]string{"10": "Gres=gres:mps:100", "11": "Gres=gres:mps:100 hostile\n'; DROP TABLE"},
	}
	must.OK(t, j.Log(ctx, time.UnixMilli(5), job.Active, map[string]int64{"10": 1, "11": 1}, c, errors.New("refused")))
	must.OK(t, j.SaveExplanations(ctx, map[string]*job.Explanation{"10": {Ref: "10", Status: "waits"}}))
	s := must.Get(j.Story(ctx, "11"))(t)
	if len(s.Groups) != 1 || len(s.Changes) != 1 || s.Changes[0].Was != "Gres=gres:mps:100 hostile\n'; DROP TABLE" ||
		s.Changes[0].Result != "refused" {
		t.Errorf("story %+v", s)
	}
	must.Equal(t, s.Note, nil, "another job's note")
}

// The story of a job that is requeued for ever is that of its last runs, in their order.
func TestStoryIsBounded(t *testing.T) {
	ctx := t.Context()
	j := open(t, filepath.Join(t.TempDir(), "j.db"))
	const all = mostTold + 5
	for i := range int64(all) {
		must.OK(t, j.SaveGroup(ctx, group(i+1, job.Done, "10")))
		c := &job.Change{Step: job.Step(fmt.Sprint(i + 1)), Update: job.Update{Jobs: []string{"10"}}}
		must.OK(t, j.Log(ctx, time.UnixMilli(i), job.Active, map[string]int64{"10": i + 1}, c, nil))
	}
	s := must.Get(j.Story(ctx, "10"))(t)
	must.Equal(t, []int{len(s.Groups), len(s.Changes)}, []int{mostTold, mostTold}, "groups and changes")
	must.Equal(t, []int64{s.Groups[0].ID, s.Groups[mostTold-1].ID}, []int64{all - mostTold + 1, all}, "groups")
	must.Equal(t, []string{s.Changes[0].Step, s.Changes[mostTold-1].Step}, []string{"6", fmt.Sprint(all)}, "changes")
}

func TestSkew(t *testing.T) {
	ctx := context.Background()
	j := open(t, filepath.Join(t.TempDir(), "j.db"))
	must.OK(t, j.SaveGroup(ctx, group(1, job.Released, "10", "11")))
	if _, _, err := j.Started(ctx, "99", time.Unix(5, 0)); !errors.Is(err, ErrNotFound) {
		t.Errorf("a job of no group: %v", err)
	}
	if _, complete, err := j.Started(ctx, "10", time.Unix(5, 1e6)); err != nil || complete {
		t.Errorf("first of two: complete %v, %v", complete, err)
	}
	// A later save of the group must not lose what is known of its starts.
	must.OK(t, j.SaveGroup(ctx, group(1, job.Started, "10", "11")))
	skew, complete, err := j.Started(ctx, "11", time.Unix(5, 4e6))
	if err != nil || !complete || skew != 3*time.Millisecond {
		t.Errorf("skew %v, complete %v, %v", skew, complete, err)
	}
	groups, err := j.Groups(ctx, time.Time{}, 10)
	if err != nil || len(groups) != 1 || groups[0].ID != 1 || groups[0].SkewS != 0.003 || !groups[0].Complete {
		t.Errorf("groups %+v, %v", groups, err)
	}
}

func TestForget(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "j.db")
	j := open(t, path)
	for _, g := range []*job.Group{group(1, job.Done, "10"), group(2, job.Released, "11"), group(3, job.Done, "12")} {
		must.OK(t, j.SaveGroup(ctx, g))
	}
	must.OK(t, j.Forget(ctx, time.Now()))
	must.Is(t, must.Err(j.Story(ctx, "10")), ErrNotFound, "an old group is gone")
	b, err := open(t, path).Load(ctx)
	if err != nil || b.Groups[2] == nil || b.NextID != 4 {
		t.Errorf("%+v, %v: the open group must stay, and numbers go on", b, err)
	}
}
