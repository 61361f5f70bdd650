package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// In a file of figures each object of a list has a line, whatever its strings hold, and the file says what was written.
func TestWriteJSON(t *testing.T) {
	type object struct {
		Name string   `json:"name"`
		Args []string `json:"args,omitempty"`
		In   []object `json:"in,omitempty"`
	}
	was := map[string][]object{"jobs": {{"{", []string{"a\n}", "}, "}, []object{{"x", nil, nil}}}, {"j2", nil, nil}}}
	file := filepath.Join(t.TempDir(), "new", "figures.json")
	must.OK(t, WriteJSON(file, was))
	body := must.Get(os.ReadFile(file))(t)
	must.Equal(t, string(body), `{
 "jobs": [
  {"name": "{", "args": ["a\n}", "}, "], "in": [{"name": "x"}]},
  {"name": "j2"}
 ]
}
`)
	var is map[string][]object
	must.OK(t, json.Unmarshal(body, &is))
	must.Equal(t, is, was)
}
