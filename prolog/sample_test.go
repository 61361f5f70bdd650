package prolog

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// The sample has every setting, with its default, and nothing else.
func TestSampleInEtc(t *testing.T) {
	const file = "../etc/node.yaml"
	got, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Load("/does/not/exist")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) && fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the sample says %+v, the defaults are %+v", got, want)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for key := range defaults {
		if before, _, ok := strings.Cut(string(text), "\n"+key+": "); !ok {
			t.Errorf("%s has no line for %s", file, key)
		} else if last := before[strings.LastIndex(before, "\n")+1:]; !strings.HasPrefix(last, "# ") {
			t.Errorf("%s says nothing of %s", file, key)
		}
	}
}
