package schedule

import (
	"encoding/json"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Whatever is stored of a schedule, it is read or refused, and one that is read can be used and stored again.
func FuzzPlain(f *testing.F) {
	p := NewSlurmAlone("n1:0", "n1:1", "n2:0")
	a := job("a", 3, 0, 100)
	a.GPUs, a.PerNode = NewGPUSet(0, 2), 1
	p.Add(a, 0)
	p.Runs(a, []int{0}, 0, 0)
	p.Runs(job("b", 1, 0, 50), []int{1}, 0, 1)
	if b, err := p.MarshalJSON(); err == nil {
		f.Add(b)
	}
	f.Add([]byte(`{"gpus":["x"],"jobs":[{"id":"1","gpus":[7],"on":[0],"place":"begun","end_s":-1,"per_node":9}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p SlurmAlone
		if json.Unmarshal(text, &p) != nil {
			return
		}
		p.Wait([]Entry{job("new", 1, 0, 10)}, 5)
		p.SetGPUs([]string{"n1:0", "x"}, 6)
		p.Ended(7, End{ID: "a", DoneS: 3})
		p.Remove(8, "b")
		p.FreeS(nil, 9)
		again := must.Get(json.Marshal(&p))(t)
		var q SlurmAlone
		must.OK(t, json.Unmarshal(again, &q))
	})
}
