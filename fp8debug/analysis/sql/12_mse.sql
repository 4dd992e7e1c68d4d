-- Mean squared error, in the square of the tensor's unit; NULL without elements.
create or replace macro mse(sum_err2, n) as ratio(sum_err2, n);
