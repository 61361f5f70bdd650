package dqn

import (
	"reflect"
	"slices"
	"testing"
)

// TestGoOn: a resumed learner and its target network have the parameters reached.
func TestGoOn(t *testing.T) {
	was := trained(t, "scorer", 6).State
	if was.Optims[0].Steps == 0 || slices.EqualFunc(was.Theta, snapshot(newNet("scorer", 4)), slices.Equal) {
		t.Fatal("nothing was learned")
	}
	net := newNet("scorer", 4)
	l := newLearner(Options{}.orDefaults(), net)
	if err := l.resume(was); err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(was.Theta, snapshot(net), slices.Equal) || !sameTheta(net, l.target) {
		t.Error("it stands elsewhere")
	}
	if !reflect.DeepEqual(l.state(), was) {
		t.Error("the optimiser forgot")
	}
}
