package job

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestMembersOfOlderJournalsGetTheirState(t *testing.T) {
	for stored, want := range map[string]MemberState{
		`{"ref":"1","ran":true,"start":"2026-01-01T00:00:00Z"}`:                             MemberRunning,
		`{"ref":"1","ran":true,"start":"2026-01-01T00:00:00Z","gone":"ended"}`:              MemberEnded,
		`{"ref":"1","gone":"owner"}`:                                                        MemberEdited,
		`{"ref":"1","gone":"moved"}`:                                                        MemberMoved,
		`{"ref":"1","undo":"it is held","tries":1}`:                                         MemberRestoring,
		`{"ref":"1","ran":true,"start":"2026-01-01T00:00:00Z","undo":"requeued","tries":2}`: MemberRestoring,
		`{"ref":"1"}`:            MemberWaiting, // of a group that is released
		`{"ref":"1","ran":true}`: MemberRunning,
	} {
		g := Group{State: Released, Members: make([]Member, 1)}
		if err := json.Unmarshal([]byte(stored), &g.Members[0]); err != nil {
			t.Fatal(err)
		}
		g.FillStates()
		if got := g.Members[0].State; got != want {
			t.Errorf("%s: %s, want %s", stored, got, want)
		}
	}
}

func TestReadersOfTheAPIStillFindWhatMembersHadBeforeTheyHadAState(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		m    Member
		want []string
	}{
		{Member{State: MemberRunning, Start: start}, []string{`"ran":true`}},
		{Member{State: MemberCancelled}, []string{`"gone":"cancelled"`}},
		{Member{State: MemberRestoring, Cause: Cause{Kind: CauseLimit, Detail: "QOSMaxJobsPerUserLimit"}}, []string{`"undo":"Slurm's limit QOSMaxJobsPerUserLimit"`}},
	} {
		b, err := json.Marshal(c.m)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s lacks %s", b, want)
			}
		}
		var back Member
		if err := json.Unmarshal(b, &back); err != nil || back != c.m {
			t.Errorf("%+v became %+v, %v", c.m, back, err)
		}
	}
}

func TestAMemberInAnUnknownStateIsAnError(t *testing.T) {
	if err := json.Unmarshal([]byte(`{"ref":"1","state":"waitimg"}`), new(Member)); err == nil || !strings.Contains(err.Error(), "waitimg") {
		t.Errorf("%v", err)
	}
}
