package text

import (
	"maps"
	"slices"
	"testing"
)

func TestFormsAreSorted(t *testing.T) {
	if !slices.IsSortedFunc(forms, func(a, b Form) int { return slices.Compare(a.Since[:], b.Since[:]) }) || forms[0].Since != Oldest {
		t.Errorf("%+v", forms)
	}
}

// What each release prints of a job that keeps other jobs off its nodes.
func TestExclusive(t *testing.T) {
	for release, says := range map[string]map[string]bool{
		"22.05.8": {"NO": true, "OK": false, "YES": false, "USER": true, "MCS": true},
		"23.11.4": {"NO": true, "OK": false, "USER": true},
		"24.05.0": {"NO": true, "OK": false, "USER": true, "MCS": true, "TOPO": true},
		"24.11.5": {"NO": true, "OK": false, "USER": true, "MCS": true, "TOPO": true},
		"25.11.4": {"NO": true, "OK": false, "TOPO": true},
		"26.05.5": {"NO": false, "NODE": true, "USER": true, "MCS": true, "TOPO": true},
		"26.11.0": {"NO": false, "NODE": true},
	} {
		for word, want := range says {
			plain := plainRow("1")
			plain[pExclusive] = word
			p := QueueParser{Form: FormOf(release)}
			jobs, _, err := p.Parse(nil, []byte(row("~N", "1", plain, [numFree]string{fPerNode: "gres:mps:100"})), "~N")
			if err != nil || len(jobs) != 1 || jobs[0].Exclusive != want {
				t.Errorf("%s: %s is %+v, %v", release, word, jobs, err)
			}
		}
	}
}

// Of the recorded jobs the one that was submitted with --exclusive is, and no other.
func TestExclusiveRecorded(t *testing.T) {
	for _, release := range releases {
		jobs, _ := parseRecorded(t, release, "queue")
		for ref, j := range jobs {
			if j.Exclusive != (ref == "13") {
				t.Errorf("%s: job %s: exclusive is %v", release, ref, j.Exclusive)
			}
		}
	}
}

func TestUpdateErrorsNameTasks(t *testing.T) {
	for line, want := range map[string][]string{
		"Job dependency problem for job 8": {"8"},
		"22_2: x":                          {"22_2"},
		"22_[2]: x":                        {"22_2"},
		"22_0-3: x":                        {"22_0", "22_1", "22_2", "22_3"},
		"22_[0-1,7]: x":                    {"22_0", "22_1", "22_7"},
		"22: x":                            {"22"},
		"22_[0-4000000]: x":                {"22"},
		"22_[3-1]: x":                      {"22"},
		"22_[2: x":                         nil,
		"22_2]: x":                         nil,
		"scontrol: error: Invalid job ID 22,22_2": nil,
	} {
		if got := slices.Sorted(maps.Keys(UpdateErrors(line))); !slices.Equal(got, want) {
			t.Errorf("%q: %q", line, got)
		}
	}
}

// A refusal of one task, in the words of each release.
func TestUpdateErrorsRecorded(t *testing.T) {
	for _, release := range releases {
		said := UpdateErrors(string(recorded(t, release, "errors")))
		if said["22_2"] != "Job dependency problem" || said["22_77"] != "Invalid job id specified" || said["22_3"] != "Invalid generic resource (gres) specification" {
			t.Errorf("%s: %q", release, said)
		}
	}
}
