package job

import (
	"encoding/json"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

func TestExplanationKeepsItsRefusalsAsSentences(t *testing.T) {
	const stored = `{"at":"0001-01-01T00:00:00Z","ref":"1","known":false,"status":"",` +
		`"refused":["with 2 on n1 gpu 0: GPU memory would not suffice at some moment","alone or joining on n1 gpu 3: a job asks not to share"],` +
		`"latest_delay_s":0,"free_in_s":0}`
	made := Explanation{Ref: "1", Refused: []Refusal{
		{With: []string{"2"}, Node: "n1", Reason: rlcore.RefusedMemory}, {Node: "n1", GPU: 3, Reason: rlcore.RefusedNoShare},
	}}
	var read Explanation
	if err := json.Unmarshal([]byte(stored), &read); err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]*Explanation{"as the planner makes it": &made, "read from a stored one": &read} {
		got, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != stored {
			t.Errorf("%s:\n got %s\nwant %s", name, got, stored)
		}
	}
}
